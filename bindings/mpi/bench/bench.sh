#!/bin/sh
# What the drop-in costs and gains, by `cargo xtask mpi --bench NAME`. Arguments: the name, the folder in which the libraries are, the
# archive of the Rust half, and a name in that folder and the compiler wrapper for each library. Names:
#
#   overhead   on 2 and 4 ranks (RANKS="2"): MPI_Allreduce with the drop-in over the same call of `collectives`
#   messages   between two ranks, which the drop-in has no part in, with it over without it
#   hosts      MPI_Allreduce of three hosts of two ranks (network namespaces: needs root and iproute2, and Open MPI's launcher) with the
#              drop-in over the library's own; sizes from FROM=65536 to TO=16777216, CALLS=40 of each
#
# Both sides are measured in turns, RUNS=5 times; prints the median over the runs, and the lowest and the highest. ADD=1 counts the
# runs before it, too, so that one measurement can be taken in parts.
set -eu
name=$1 libraries=$2 archive=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
into=$libraries/bench
runs=${RUNS:-5}
mkdir -p "$into"

# Lines of a run: bytes, and the 10th and the 50th percentile of both sides. The second side over the first, by size.
summary() {
    awk -v name="$name" '
        function sorted(text, list,   n, i, j, t) {
            n = split(text, list, " ")
            for (i = 2; i <= n; i++) for (j = i; j > 1 && list[j - 1] + 0 > list[j] + 0; j--) {
                t = list[j]; list[j] = list[j - 1]; list[j - 1] = t
            }
            return n
        }
        function middle(text,   list, n) {
            n = sorted(text, list)
            return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
        }
        function range(text, format,   list, n) {
            n = sorted(text, list)
            return sprintf(format " [" format " to " format "]", middle(text), list[1], list[n])
        }
        { if (!($1 in seen)) { seen[$1] = 1; order[++sizes] = $1 }
          runs[$1]++
          low[$1] = low[$1] " " $2; half[$1] = half[$1] " " $3
          more[$1] = more[$1] " " $4 - $2; over[$1] = over[$1] " " $4 / $2; over_half[$1] = over_half[$1] " " $5 / $3 }
        END { for (i = 1; i <= sizes; i++) { s = order[i]
            if (name == "overhead")
                printf "%8d bytes, %d runs: %9.0f ns, more by %s ns, times %s\n", s, runs[s], middle(low[s]),
                       range(more[s], "%.0f"), range(over[s], "%.3f")
            else if (name == "messages")
                printf "%8d bytes, %d runs: %9.0f ns, times %s\n", s, runs[s], middle(low[s]), range(over[s], "%.3f")
            else
                printf "%8d bytes, %d runs: %9.0f µs, times %s\n", s, runs[s], middle(half[s]), range(over_half[s], "%.2f")
        } }' "$1"
}

# The launcher of a wrapper, with what it needs to have more ranks than cores; and what gives them the drop-in.
launcher() {
    launch=$(dirname "$1")/mpirun${1##*mpicc}
    [ "${1#*/}" != "$1" ] || launch=mpirun${1#mpicc}
    preload="-genv LD_PRELOAD $libraries/$mpi/libchipcomm_mpi.so"
    case $($launch --version 2>&1) in
        *open-mpi.org*)
            launch="$launch --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
            preload="-x LD_PRELOAD=$libraries/$mpi/libchipcomm_mpi.so"
            ;;
    esac
}

fresh() { [ -n "${ADD:-}" ] || rm -f "$1"; }

overhead() {
    "$wrapper" -std=gnu11 -O2 -I "$here/../c" -o "$into/$mpi-overhead" "$here/overhead.c" "$here"/../c/*.c "$archive" -lpthread -ldl -lm
    for ranks in ${RANKS:-2 4}; do
        fresh "$into/$mpi-overhead-$ranks"
        for _ in $(seq "$runs"); do
            $launch -n "$ranks" "$into/$mpi-overhead" > "$into/both"
            awk '{ print $1, $3, $4, $6, $7 }' "$into/both" >> "$into/$mpi-overhead-$ranks"
        done
        echo "$mpi, $ranks ranks: collectives (10th percentile), and MPI_Allreduce over it"
        summary "$into/$mpi-overhead-$ranks"
    done
}

messages() {
    "$wrapper" -O2 -o "$into/$mpi-messages" "$here/pingpong.c"
    fresh "$into/$mpi-messages.txt"
    for _ in $(seq "$runs"); do
        $launch -n 2 "$into/$mpi-messages" > "$into/alone"
        $launch -n 2 $preload "$into/$mpi-messages" > "$into/with"
        paste "$into/alone" "$into/with" | awk '{ print $1, $2, $3, $5, $6 }' >> "$into/$mpi-messages.txt"
    done
    echo "$mpi, 2 ranks: a message without the drop-in (10th percentile), and with it over that"
    summary "$into/$mpi-messages.txt"
}

remove_hosts() {
    for host in 1 2 3; do ip netns del "$net-$host" 2> /dev/null || true; done
    ip link del "$net" 2> /dev/null || true
}

hosts() {
    case $preload in -x*) ;; *) echo "$mpi: no hosts: only Open MPI's launcher is known to enter them"; return ;; esac
    net=cb$$
    trap remove_hosts EXIT
    trap 'exit 1' INT TERM HUP
    ip link add "$net" type bridge
    ip link set "$net" up
    for host in 1 2 3; do
        ip netns add "$net-$host"
        ip link add "${net}v$host" type veth peer name eth0 netns "$net-$host"
        ip link set "${net}v$host" master "$net" up
        ip -n "$net-$host" addr add "10.77.24.$host/24" dev eth0
        ip -n "$net-$host" link set eth0 up
        ip -n "$net-$host" link set lo up
    done
    # The last number of an address is that of the host.
    cat > "$into/agent" << END
#!/bin/sh
host=\${1##*.}; shift
exec ip netns exec $net-\$host unshare --uts sh -c "hostname $net-\$host; \$*"
END
    chmod +x "$into/agent"
    "$wrapper" -O2 -o "$into/$mpi-beside" "$here/beside.c"
    fresh "$into/$mpi-hosts.txt"
    for _ in $(seq "$runs"); do
        "$into/agent" 10.77.24.1 $launch -n 6 --mca plm_rsh_agent "$into/agent" --mca btl_tcp_if_include 10.77.24.0/24 \
            --mca oob_tcp_if_include 10.77.24.0/24 -host 10.77.24.1:2,10.77.24.2:2,10.77.24.3:2 \
            $preload "$into/$mpi-beside" "${FROM:-65536}" "${TO:-16777216}" "${CALLS:-40}" > "$into/both"
        awk '{ print $1, $6, $7, $3, $4 }' "$into/both" >> "$into/$mpi-hosts.txt"
    done
    echo "$mpi, three hosts of two ranks: the library's allreduce (median), and the drop-in's over it"
    summary "$into/$mpi-hosts.txt"
}

while [ $# -gt 1 ]; do
    mpi=$1 wrapper=$2
    shift 2
    launcher "$wrapper"
    case $name in
        overhead | messages | hosts) "$name" ;;
        *) echo "there is no measurement of the name $name: overhead, messages, hosts" >&2; exit 2 ;;
    esac
done
