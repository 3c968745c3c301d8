#!/bin/sh
# mpi4py's own tests of collectives, with the drop-in, on 1 to 5 ranks. Arguments: the folder in which `cargo xtask mpi` put the libraries,
# and a name in it and the compiler wrapper for each of them: FOLDER openmpi mpicc.openmpi … RANKS="2 3" runs these numbers only,
# TESTS=test_cco_vec these tests.
# Prints a line for each run, with the counts of taken calls. A run without counts had no drop-in, and fails.
set -eu
libraries=$1
shift
here=$libraries/mpi4py
mkdir -p "$here"
cd "$here"
[ -n "$(ls mpi4py-*.tar.gz 2> /dev/null)" ] || python3 -m pip download --quiet --no-deps --no-binary mpi4py mpi4py
tar xf mpi4py-*.tar.gz
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
    library=$libraries/$mpi/libchipcomm_mpi.so
    case $("$launcher" --version 2>&1) in
        *open-mpi.org*) launch="--allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -x LD_PRELOAD=$library" ;;
        *) launch="-genv LD_PRELOAD $library" ;;
    esac
    for ranks in ${RANKS:-1 2 3 4 5}; do
        log=$here/$mpi-$ranks.log
        code=0
        (cd mpi4py-*/ && CHIPCOMM_MPI_STATS=1 timeout --foreground 1800 "$launcher" $launch -n "$ranks" \
            "$here/$mpi/bin/python" -u test/main.py -q -f -i "${TESTS:-test_cco}") > "$log" 2>&1 || code=$?
        taken=$(grep 'calls taken' "$log") || code="$code, no drop-in"
        echo "$mpi, $ranks ranks: exit $code, $(grep -m 1 '^Ran' "$log"), $(grep -m 1 '^OK\|^FAILED' "$log"), $taken"
        [ "$code" = 0 ] || failed=1
    done
done
exit $failed
