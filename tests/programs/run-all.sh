#!/bin/sh
# Run all test programs beside this script or in DIRECTORY, one after the other,
# and print one table. The environment is taken as it is (LD_LIBRARY_PATH and
# PARAGPU_* say which CUDA the programs find).
#
#   run-all.sh [-d DIRECTORY] [-t SECONDS] [-o table|json] [-w WORDS] [PROGRAM…]
#
#   -d  where the programs are (default: out/programs of the repository, or, if
#       that is not there, this script's own directory)
#   -t  how long each may take (default 60)
#   -o  table (default) or json: one object a line, then nothing else on stdout
#   -w  words given to each program, for instance "--size 1000 --seed 7"
#
# Exit status: 0 if all passed, 1 if one did not, 2 for wrong words or no program.
# A shell of busybox and its timeout and sed are enough.

here=$(cd "$(dirname "$0")" && pwd)
directory=$here/../../out/programs
[ -d "$directory" ] || directory=$here
limit=60
output=table
words=

usage() {
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

while getopts d:t:o:w:h option; do
    case $option in
    d) directory=$OPTARG ;;
    t) limit=$OPTARG ;;
    o) output=$OPTARG ;;
    w) words=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
case $output in table | json) ;; *) usage ;; esac
case $limit in '' | *[!0-9]*) usage ;; esac
cd "$directory" || exit 2

if [ $# -eq 0 ]; then
    for file in *; do
        case $file in *.*) continue ;; esac
        [ -f "$file" ] && [ -x "$file" ] && set -- "$@" "$file"
    done
fi
if [ $# -eq 0 ]; then
    echo "run-all: no programs in $directory" >&2
    exit 2
fi

# The value of a key in the line of JSON that a program printed.
text_of() {
    printf '%s\n' "$line" | sed -n "s/.*\"$1\":\"\(\([^\"\\\\]\|\\\\.\)*\)\".*/\1/p"
}
number_of() {
    printf '%s\n' "$line" | sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p"
}

# Text without what JSON would need escapes for.
plain() {
    # shellcheck disable=SC1003 # a backslash, for tr
    printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037"\\' | cut -c1-300
}

# One that does not heed the first signal is killed, where timeout can do that.
kill_after=
timeout -k 5 1 true 2>/dev/null && kill_after='-k 5'

noise=$(mktemp) || exit 2
trap 'rm -f "$noise"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

passed=0
failed=0
[ "$output" = table ] && printf '%-22s %-6s %9s  %-16s  %s\n' program result seconds digest remark
for program; do
    # Unquoted on purpose: each word is an argument.
    # shellcheck disable=SC2086
    all=$(timeout $kill_after "$limit" "./$program" --json $words 2>"$noise")
    status=$?
    line=$(printf '%s\n' "$all" | sed -n '/^{"program":/p' | sed -n '$p')
    remark=
    if [ "$status" -eq 0 ] && [ "${line#*\"ok\":true}" != "$line" ]; then
        result=ok
        passed=$((passed + 1))
        remark=$(text_of note)
    else
        result=FAILED
        failed=$((failed + 1))
        case $status in
        124 | 137 | 143) remark="no end within $limit s" ;;
        *)
            remark=$(text_of reason)
            [ -n "$remark" ] || remark="exit status $status: $(plain "$all $(cat "$noise")")"
            ;;
        esac
    fi
    if [ "$output" = table ]; then
        printf '%-22s %-6s %9s  %-16s  %s\n' "$program" "$result" "$(number_of seconds)" "$(text_of digest)" "$remark"
    elif [ "$result" = ok ] || [ "${line#*\"ok\":false}" != "$line" ]; then
        printf '%s\n' "$line"
    else
        printf '{"program":"%s","ok":false,"status":%d,"reason":"%s"}\n' "$program" "$status" "$(plain "$remark")"
    fi
done
[ "$output" = table ] && printf '%d of %d passed\n' "$passed" $((passed + failed))
[ "$failed" -eq 0 ]
