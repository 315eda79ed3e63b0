# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2154 # cache and guest are of cache.sh
#
# The kernel "debug": built here from Debian's source with debug.config. Sourced
# after cache.sh and suite.sh.

debug_config=$guest/debug.config

debug_key() {
	sha256sum < "$debug_config" | head -c 12
}

compiler() {
	gcc --version | sed 1q
}

# is_current DIR: whether the debug kernel in DIR was built with the current debug.config
is_current() {
	[[ -e $1/key && $(cat "$1/key") == "$(debug_key)" ]]
}

# lost_options CONFIG: the lines of debug.config that CONFIG does not have
lost_options() {
	local line option
	while read -r line; do
		case $line in
		CONFIG_*)
			grep -qxF "$line" "$1" || printf '%s\n' "$line"
			;;
		'# CONFIG_'*' is not set')
			option=${line#\# }
			option=${option% is not set}
			! grep -q "^$option=" "$1" || printf '%s\n' "$line"
			;;
		esac
	done < "$debug_config"
}

# unpack_source SUITE PACKAGE TEMP
unpack_source() {
	local suite=$1 package=$2 temp=$3
	suite_download "$suite" "$temp/debs" "$package"
	say "unpacking $package"
	dpkg-deb --fsys-tarfile "$temp"/debs/*.deb |
		tar -xO --wildcards './usr/src/linux-source-*.tar.xz' > "$temp/debs/source.tar.xz"
	tar -xJf "$temp/debs/source.tar.xz" -C "$temp" --strip-components=1
	rm -rf "${temp:?}/debs"
}

# report_progress: print one of make's lines every half minute, and all errors
report_progress() {
	local line files=0 start=$SECONDS last=$SECONDS
	while read -r line; do
		case $line in
		'CC '* | 'AS '* | 'HOSTCC '*) files=$((files + 1)) ;;
		*error:* | *'***'*) printf '%s\n' "$line" >&2 ;;
		esac
		if [[ $((SECONDS - last)) -ge 30 ]]; then
			last=$SECONDS
			say "$files files compiled in $((SECONDS - start)) s"
		fi
	done
	say "$files files compiled in $((SECONDS - start)) s"
}

# make_debug SUITE PACKAGE TEMP: compiled files are kept until the kernel is complete, so
# that a killed run can be resumed.
make_debug() {
	local suite=$1 package=$2 temp=$3 source lost release
	source=$cache/build/debug-$(debug_key)
	cached "build/debug-$(debug_key)" unpack_source "$suite" "$package"
	if [[ ! -e $source/.configured ]]; then
		make -s -C "$source" tinyconfig > /dev/null
		(cd "$source" && scripts/kconfig/merge_config.sh -m .config "$debug_config") > /dev/null
		make -s -C "$source" olddefconfig > /dev/null
		touch "$source/.configured"
	fi
	lost=$(lost_options "$source/.config")
	[[ -z $lost ]] || die "$debug_config: the kernel has lost options: ${lost//$'\n'/, }"

	say "compiling the debug kernel (ten to twenty minutes)"
	nice -n 10 make -C "$source" -j "$(nproc)" vmlinux modules 2>&1 | report_progress
	release=$(make -s -C "$source" kernelrelease)
	mkdir -p "$temp/lib/modules/$release"
	cp "$source/vmlinux" "$temp/vmlinux"
	cp "$source/.config" "$temp/config"
	cp "$source"/modules.{order,builtin,builtin.modinfo} "$temp/lib/modules/$release/"
	make -s -C "$source" run-command \
		KBUILD_RUN_COMMAND="scripts/package/install-extmod-build $temp/build" > /dev/null
	cp "$source/.config" "$temp/build/"
	ln -s ../../../build "$temp/lib/modules/$release/build"
	depmod -b "$temp" "$release"
	compiler > "$temp/compiler"
	debug_key > "$temp/key"
	printf '%s\n' "$release" > "$temp/ver"
	rm -rf "$source"
}
