# SPDX-License-Identifier: MIT
# fish completion for sbctl. Commands and options are read from its --help, so that
# there is one place where they are written down.

function __sbctl_command
    set -l before
    for word in (commandline -opc)[2..-1]
        if test "$before" = --backend
            set before
            continue
        end
        set before $word
        if not string match -q -- '-*' $word
            echo $word
            return
        end
    end
end

function __sbctl_section -a section
    set -e argv[1]
    sbctl $argv --help 2>/dev/null | awk -v section="$section:" '
        /^[A-Z].*:$/ { on = $0 == section; next }
        /^$/ { on = 0 }
        on { print }'
end

function __sbctl_commands
    __sbctl_section Commands | string replace -r '^ *(\S+) +(.*)' '$1\t$2'
end

function __sbctl_options
    for line in (__sbctl_section Options (__sbctl_command))
        set -l text (string replace -r '^ *(-\S+ +)*' '' -- $line)
        for word in (string match -ra -- '(?<=^| )--?[A-Za-z][a-z-]*=?' $line)
            printf '%s\t%s\n' $word $text
        end
    end
end

function __sbctl_targets
    set -l token (commandline -ct)
    if string match -qr '^[^:]+:[^:]+:[^:]*$' -- $token
        set -l file (string replace -r ':.*' '' -- $token)
        sbctl symbols --lines $file (string replace -r '^[^:]*:' '' -- $token)'*' 2>/dev/null |
            string replace -r '^' "$file:" | string match -- "$token*"
    else if string match -q '*:*' -- $token
        set -l file (string replace -r ':[^:]*$' '' -- $token)
        sbctl symbols $file (string replace -r '.*:' '' -- $token)'*' 2>/dev/null |
            string replace -r '^' "$file:"
    else
        __fish_complete_path $token
        # The libraries that the loader finds by their names, too.
        if not string match -q '*/*' -- $token
            PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | awk 'NR > 1 { print $1 }' | sort -u
        end
    end
end

function __sbctl_present
    sbctl list --persistent 2>/dev/null | awk 'NR > 1 { print $NF }'
end

function __sbctl_wants_file
    contains -- (commandline -opc)[-1] -f --file -T --targets -o --output -c --cgroup
end

complete -c sbctl -f
complete -c sbctl -n 'test (commandline -opc)[-1] = --backend' -a 'driver bpf auto'
complete -c sbctl -n __sbctl_wants_file -F
complete -c sbctl -n 'test -z "$(__sbctl_command)"' -a '(__sbctl_commands)'
complete -c sbctl -n 'string match -q -- "-*" (commandline -ct)' -a '(__sbctl_options)'
complete -c sbctl -n 'contains -- (__sbctl_command) add run symbols' -a '(__sbctl_targets)'
complete -c sbctl -n 'contains -- (__sbctl_command) remove update' -a '(__sbctl_present)'
complete -c sbctl -n 'contains -- (__sbctl_command) help' -a '(__sbctl_commands)'
complete -c sbctl -n 'contains -- (__sbctl_command) load' -a 'max_targets='
