# SPDX-License-Identifier: MIT
# bash completion for sbctl. Commands and options are read from its --help, so that
# there is one place where they are written down.

# The first words of the indented lines of a section: __sbctl_words SECTION [COMMAND]
__sbctl_words() {
	sbctl ${2:+"$2"} --help 2> /dev/null |
		awk -v section="$1:" '
			/^[A-Z].*:$/ { on = $0 == section; next }
			/^$/ { on = 0 }
			!on { next }
			section == "Commands:" { print $1; next }
			{
				for (i = 1; i <= NF && $i ~ /^-/; i++) {
					word = $i
					sub(/,$/, "", word)
					sub(/=.*/, "=", word)
					print word
				}
			}'
}

# The libraries that the loader finds by their names.
__sbctl_libraries() {
	PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2> /dev/null | awk 'NR > 1 { print $1 }' | sort -u
}

# Targets: PATH or the name of a library, then PATH:SYMBOL or PATH:FILE:LINE.
__sbctl_targets() {
	local path=${cur%:*}

	if [[ $cur == *:*[^:]:* && $cur != *::* ]]; then
		path=${cur%%:*}
		mapfile -t COMPREPLY < <(sbctl symbols --lines "$path" "${cur#*:}*" 2> /dev/null |
			sed "s|^|$path:|" | grep -F -- "$cur")
	elif [[ $cur == *:* ]]; then
		mapfile -t COMPREPLY < <(sbctl symbols "$path" "${cur##*:}*" 2> /dev/null |
			sed "s|^|$path:|")
	else
		mapfile -t COMPREPLY < <(compgen -f -- "$cur"
			[[ $cur == */* ]] || compgen -W "$(__sbctl_libraries)" -- "$cur")
		compopt -o nospace -o filenames
	fi
	__sbctl_trim
}

# Targets that are there.
__sbctl_present() {
	mapfile -t COMPREPLY < <(compgen -W "$(sbctl list --persistent 2> /dev/null |
		awk 'NR > 1 { print $NF }')" -- "$cur")
	__sbctl_trim
}

# The shell splits words at ':' and wants only what comes behind it.
__sbctl_trim() {
	local head=${cur%"${cur##*:}"} i

	[[ $cur == *:* && $COMP_WORDBREAKS == *:* ]] || return 0
	for i in "${!COMPREPLY[@]}"; do
		COMPREPLY[i]=${COMPREPLY[i]#"$head"}
	done
}

_sbctl() {
	local cur prev i command='' line

	# The word under the cursor, whole, whatever COMP_WORDBREAKS makes of it.
	line=${COMP_LINE:0:COMP_POINT}
	cur=${line##*[[:space:]]}
	prev=${COMP_WORDS[COMP_CWORD - 1]}
	COMPREPLY=()

	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		--)
			[[ $command == run ]] || break
			# What comes behind is another command's.
			declare -F _command_offset > /dev/null && _command_offset $((i + 1))
			return
			;;
		--backend) ((i++)) ;;
		-*) ;;
		*) [[ $command ]] || command=${COMP_WORDS[i]} ;;
		esac
	done

	case $prev in
	--backend)
		mapfile -t COMPREPLY < <(compgen -W 'driver bpf auto' -- "$cur")
		return
		;;
	-f | --file | -T | --targets | -o | --output)
		compopt -o filenames
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		return
		;;
	-c | --cgroup)
		compopt -o filenames
		mapfile -t COMPREPLY < <(compgen -d -- "$cur")
		return
		;;
	-p | --pid | --pid-tree)
		mapfile -t COMPREPLY < <(compgen -W "$(ps -eo pid= 2> /dev/null)" -- "$cur")
		return
		;;
	esac

	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(__sbctl_words Options "$command")" -- "$cur")
		[[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace
		return 0
	fi
	case $command in
	'' | help) mapfile -t COMPREPLY < <(compgen -W "$(__sbctl_words Commands)" -- "$cur") ;;
	add | run | symbols) __sbctl_targets ;;
	remove | update) __sbctl_present ;;
	load) mapfile -t COMPREPLY < <(compgen -W 'max_targets=' -- "$cur") ;;
	esac
	return 0
}

complete -F _sbctl sbctl
