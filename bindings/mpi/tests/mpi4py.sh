#!/bin/sh
# mpi4py's own tests of collectives, with the drop-in, on 1 to 5 ranks of Debian's Open MPI and MPICH. The first argument is the folder in
# which `cargo xtask mpi` put the libraries. Prints a line for each run, with the counts of taken calls.
set -eu
libraries=$1
here=$libraries/mpi4py
mkdir -p "$here"
cd "$here"
[ -n "$(ls mpi4py-*.tar.gz 2> /dev/null)" ] || python3 -m pip download --quiet --no-deps --no-binary mpi4py mpi4py
tar xf mpi4py-*.tar.gz
failed=0
for mpi in openmpi mpich; do
    command -v mpicc.$mpi > /dev/null || continue
    if ! [ -x $mpi/bin/python ] || ! $mpi/bin/python -c 'import mpi4py' 2> /dev/null; then
        python3 -m venv $mpi
        $mpi/bin/pip install --quiet numpy
        MPICC=$(command -v mpicc.$mpi) CFLAGS=-O0 $mpi/bin/pip install --quiet --no-deps mpi4py-*.tar.gz
    fi
    library=$libraries/$mpi/libchipcomm_mpi.so
    case $mpi in
        openmpi) launch="--allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -x LD_PRELOAD=$library" ;;
        mpich) launch="-genv LD_PRELOAD $library" ;;
    esac
    for ranks in ${RANKS:-1 2 3 4 5}; do
        log=$here/$mpi-$ranks.log
        code=0
        (cd mpi4py-*/ && CHIPCOMM_MPI_STATS=1 timeout 1800 mpirun.$mpi $launch -n "$ranks" \
            "$here/$mpi/bin/python" -u test/main.py -q -f -i test_cco) > "$log" 2>&1 || code=$?
        echo "$mpi, $ranks ranks: exit $code, $(grep -m 1 '^Ran' "$log"), $(grep -m 1 '^OK\|^FAILED' "$log"), $(grep 'calls taken' "$log")"
        [ $code -eq 0 ] || failed=1
    done
done
exit $failed
