# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# The help of scripts whose first comment says what they do. Sourced before "cd": $0 may be
# relative.

# print_help: the usage, unless the comment begins with it, and the comment
print_help() {
	local name=${0##*/} text
	text=$(sed -n -e 1,2d -e '/^#/!q' -e '/^# shellcheck/d' -e 's/^# \{0,1\}//p' "$0")
	[[ $text == "$name"[\ :]* ]] || printf 'Usage: %s\n\n' "$name"
	printf '%s\n' "$text"
}

# usage_error MESSAGE
usage_error() {
	echo "${0##*/}: $1" >&2
	echo "try ${0##*/} -h" >&2
	exit 2
}

# help_is_asked "$@": print it and exit, if so
help_is_asked() {
	case ${1-} in
	-h | --help) print_help; exit 0 ;;
	esac
}

# no_arguments "$@": accept only a request for help
no_arguments() {
	help_is_asked "$@"
	[[ $# -eq 0 ]] || usage_error "takes no arguments, and got: $*"
}
