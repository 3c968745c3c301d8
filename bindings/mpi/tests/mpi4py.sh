#!/bin/sh
# mpi4py's own tests of collectives, with the drop-in, on 1 to 5 ranks. Arguments: the folder in which `cargo xtask mpi` put the libraries,
# and a name in it and the compiler wrapper for each of them: FOLDER openmpi mpicc.openmpi … RANKS="2 3" runs these numbers only,
# TESTS="test_cco_vec test_cco_obj" these files only, BUSY=1 without idle.c.
# Prints a line for each run of a file, with the counts of tests and of taken calls, and a line for each number of ranks. A run without
# counts had no drop-in, and fails.
set -eu
libraries=$1
shift
tests=$(cd "$(dirname "$0")" && pwd)
here=$libraries/mpi4py
mkdir -p "$here"
cd "$here"
[ -n "$(ls mpi4py-*.tar.gz 2> /dev/null)" ] || python3 -m pip download --quiet --no-deps --no-binary mpi4py mpi4py
tar xf mpi4py-*.tar.gz
idle=
if [ -z "${BUSY:-}" ]; then
    ${CC:-cc} -O2 -Wall -shared -fPIC -o idle.so "$tests/idle.c"
    idle=:$here/idle.so
fi
files=$(cd mpi4py-*/test && ls test_cco_*.py | sed 's/\.py$//')

# The number in front of these words in the first line that has them; 0 without one.
number() { sed -n "s/^\(.*[^0-9]\)\{0,1\}\([0-9][0-9]*\) $1.*/\2/p" "$2" | head -n 1 | grep . || echo 0; }

failed=0
while [ $# -gt 1 ]; do
    mpi=$1 wrapper=$2
    shift 2
    # mpicc.openmpi has mpirun.openmpi beside it, and mpicc has mpirun.
    launcher=$(dirname "$wrapper")/mpirun${wrapper##*mpicc}
    [ "${wrapper#*/}" != "$wrapper" ] || launcher=mpirun${wrapper#mpicc}
    if ! [ -x "$mpi/bin/python" ] || ! "$mpi/bin/python" -c 'import mpi4py' 2> /dev/null; then
        python3 -m venv "$mpi"
        "$mpi/bin/pip" install --quiet numpy
        MPICC=$(command -v "$wrapper") CFLAGS=-O0 "$mpi/bin/pip" install --quiet --no-deps mpi4py-*.tar.gz
    fi
    preload=$libraries/$mpi/libchipcomm_mpi.so$idle
    case $("$launcher" --version 2>&1) in
        *open-mpi.org*) launch="--allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -x LD_PRELOAD=$preload" ;;
        *) launch="-genv LD_PRELOAD $preload" ;;
    esac
    for ranks in ${RANKS:-1 2 3 4 5}; do
        all=0 all_taken=0 all_passed=0 bad=0
        for file in ${TESTS:-$files}; do
            log=$here/$mpi-$ranks-$file.log
            code=0
            (cd mpi4py-*/ && CHIPCOMM_MPI_STATS=1 timeout --foreground 1800 "$launcher" $launch -n "$ranks" \
                "$here/$mpi/bin/python" -u test/main.py -q -f -i "$file.py") > "$log" 2>&1 || code=$?
            grep -q 'calls taken' "$log" || code="$code, no drop-in"
            ran=$(number 'tests* in' "$log") taken=$(number 'calls taken' "$log") passed=$(number 'passed on' "$log")
            took=$(grep -o -m 1 '^Ran [0-9]* tests* in [0-9.]*s' "$log") || took="ran none"
            end=$(grep -o -m 1 '^OK\( (skipped=[0-9]*)\)*\|^FAILED' "$log") || end="no end"
            echo "$mpi, $ranks ranks, $file: exit $code, $took, $end, $taken calls taken, $passed passed on"
            [ "$code" = 0 ] || bad=1
            all=$((all + ran)) all_taken=$((all_taken + taken)) all_passed=$((all_passed + passed))
        done
        failed=$((failed | bad))
        echo "$mpi, $ranks ranks: $all tests, $([ $bad = 0 ] && echo all well || echo NOT WELL)," \
            "$all_taken calls taken, $all_passed passed on"
    done
done
exit $failed
