# SPDX-License-Identifier: MIT
# bash completion for speed-bump. Commands and options are read from its --help, so that
# there is one place where they are written down.

# __speed_bump_help [COMMAND]: its help text, asked for once
__speed_bump_help() {
	local name=__speed_bump_text_${1:-}
	name=${name//-/_}
	[[ -n ${!name-} ]] || printf -v "$name" '%s' "$(speed-bump ${1:+"$1"} --help 2> /dev/null)"
	printf '%s\n' "${!name}"
}

# Commands are what stands indented below a heading that is no list of options.
__speed_bump_commands() {
	__speed_bump_help | sed -nE 's/^    ([a-z][a-z-]*)( .*|$)/\1/p'
}

__speed_bump_options() {
	__speed_bump_help "$1" | sed -nE '/^  -/p' |
		sed -E 's/  +[^ -].*//' | grep -oE -- '(^|[ ,])--?[A-Za-z][a-z-]*' | tr -d ' ,'
}

# Whether the option takes a value: its help says which, behind it.
__speed_bump_takes_value() {
	__speed_bump_help "$1" | sed -nE '/^  -/p' | grep -qE -- "(^  |, )$2 [A-Z{]"
}

__speed_bump_files() {
	compopt -o filenames
	mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}

# The libraries that the loader finds by their names.
__speed_bump_libraries() {
	PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2> /dev/null | awk 'NR > 1 { print $1 }' | sort -u
}

# PATH or the name of a library, then PATH:SYMBOL or PATH:FILE:LINE; sbctl knows them.
__speed_bump_native() {
	local i head=${cur%"${cur##*:}"}

	if [[ $cur != *:* ]]; then
		mapfile -t COMPREPLY < <(compgen -f -- "$cur"
			[[ $cur == */* ]] || compgen -W "$(__speed_bump_libraries)" -- "$cur")
		compopt -o nospace -o filenames
		return
	fi
	if [[ $cur == *:*[^:]:* && $cur != *::* ]]; then
		mapfile -t COMPREPLY < <(sbctl symbols --lines "${cur%%:*}" "${cur#*:}*" 2> /dev/null |
			sed "s|^|${cur%%:*}:|" | grep -F -- "$cur")
	else
		mapfile -t COMPREPLY < <(sbctl symbols "${cur%:*}" "${cur##*:}*" 2> /dev/null |
			sed "s|^|${cur%:*}:|")
	fi
	# The shell splits words at ':' and wants only what comes behind it.
	[[ $COMP_WORDBREAKS == *:* ]] || return 0
	for i in "${!COMPREPLY[@]}"; do
		COMPREPLY[i]=${COMPREPLY[i]#"$head"}
	done
}

_speed_bump() {
	local cur prev i command='' line

	line=${COMP_LINE:0:COMP_POINT}
	cur=${line##*[[:space:]]}
	line=${line%"$cur"}
	line=${line%"${line##*[![:space:]]}"}
	prev=${line##*[[:space:]]}
	COMPREPLY=()

	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		--)
			# What comes behind is another command's.
			declare -F _command_offset > /dev/null && _command_offset $((i + 1))
			return
			;;
		-*) ;;
		*) [[ $command ]] || command=${COMP_WORDS[i]} ;;
		esac
	done

	case $prev in
	--targets | --json | -o | --output | --html | --flamegraph | --run | --dir)
		__speed_bump_files
		return
		;;
	--native) __speed_bump_native; return ;;
	--pid | --pid-tree)
		mapfile -t COMPREPLY < <(compgen -W "$(ls /proc | grep -x '[0-9]*')" -- "$cur")
		return
		;;
	--attach)
		mapfile -t COMPREPLY < <(compgen -W 'socket remote debugger' -- "$cur")
		return
		;;
	-*)
		if __speed_bump_takes_value "$command" "$prev"; then
			return
		fi
		;;
	esac
	if [[ $cur == -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(__speed_bump_options "$command")" -- "$cur")
	elif [[ -z $command ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(__speed_bump_commands)" -- "$cur")
	else
		__speed_bump_files
	fi
	return 0
}

complete -F _speed_bump speed-bump
