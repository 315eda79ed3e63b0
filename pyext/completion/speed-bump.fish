# SPDX-License-Identifier: MIT
# fish completion for speed-bump. Commands and options are read from its --help, so that
# there is one place where they are written down.

function __speed_bump_command
    for word in (commandline -opc)[2..-1]
        if not string match -q -- '-*' $word
            echo $word
            return
        end
    end
end

function __speed_bump_options
    speed-bump (__speed_bump_command) --help 2>/dev/null | string match -r -- '^  -.*' |
        while read -l line
            set -l parts (string split -m 1 -n '  ' -- (string trim -- $line))
            for word in (string match -ra -- '(?<=^|, |\s)--?[A-Za-z][a-z-]*' $parts[1])
                printf '%s\t%s\n' $word (string trim -- "$parts[2]")
            end
        end
end

function __speed_bump_commands
    speed-bump --help 2>/dev/null | string match -rg '^    ([a-z][a-z-]*)(?: .*|$)'
end

# What sbctl takes; its own completion knows libraries and their symbols.
function __speed_bump_native
    complete -C "sbctl add "(string escape -- (commandline -ct))
end

function __speed_bump_after
    contains -- (commandline -opc)[-1] $argv
end

complete -c speed-bump -f
complete -c speed-bump -n '__speed_bump_after --targets --json -o --output --html --flamegraph --run --dir' -F
complete -c speed-bump -n '__speed_bump_after --pid --pid-tree' -a '(__fish_complete_pids)'
complete -c speed-bump -n '__speed_bump_after --attach' -a 'socket remote debugger'
complete -c speed-bump -n '__speed_bump_after --native' -a '(__speed_bump_native)'
complete -c speed-bump -n 'test -z "$(__speed_bump_command)"' -a '(__speed_bump_commands)'
complete -c speed-bump -n 'string match -q -- "-*" (commandline -ct)' -a '(__speed_bump_options)'
complete -c speed-bump -n 'contains -- -- (commandline -opc)' -F
