"""One rank of a group, in Python through ctypes: RANK NRANKS PATH LIBRARY."""

import ctypes
import sys


class CommContext(ctypes.Structure):
    _fields_ = [
        ("workSpace", ctypes.c_uint64),
        ("workSpaceSize", ctypes.c_uint64),
        ("rankId", ctypes.c_uint32),
        ("rankNum", ctypes.c_uint32),
        ("winSize", ctypes.c_uint64),
        ("windowsIn", ctypes.c_uint64 * 64),
        ("windowsOut", ctypes.c_uint64 * 64),
    ]


def main() -> None:
    rank, nranks, path, library = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    lib = ctypes.CDLL(library)
    lib.comm_init.restype = ctypes.c_void_p
    lib.comm_last_error.restype = ctypes.c_char_p

    def check(code: int) -> None:
        assert code == 0, (code, lib.comm_last_error().decode())

    assert ctypes.sizeof(CommContext) == 1056
    assert lib.comm_init(rank, nranks, None, b"") is None
    assert "empty" in lib.comm_last_error().decode()

    handle = lib.comm_init(rank, nranks, None, path.encode())
    assert handle, lib.comm_last_error().decode()
    comm = ctypes.c_void_p(handle)
    address, base, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t()
    check(lib.comm_alloc_windows(comm, ctypes.c_size_t(4096), ctypes.byref(address)))
    check(lib.comm_get_local_window_base(comm, ctypes.byref(base)))
    check(lib.comm_get_window_size(comm, ctypes.byref(size)))
    context = CommContext.from_address(address.value)
    assert (context.rankId, context.rankNum, context.winSize) == (rank, nranks, size.value)
    assert context.windowsIn[rank] == base.value

    for peer in range(nranks):
        ctypes.c_uint32.from_address(context.windowsIn[peer] + 4 * rank).value = 1000 + rank
    check(lib.comm_barrier(comm))
    own = (ctypes.c_uint32 * nranks).from_address(base.value)
    assert list(own) == [1000 + peer for peer in range(nranks)], list(own)

    ranks = (ctypes.c_uint32 * nranks)(*range(nranks))
    domain = (ctypes.c_uint64(5), ranks, ctypes.c_size_t(nranks), ctypes.c_uint32(rank), ctypes.c_size_t(64))
    check(lib.comm_alloc_domain_windows(comm, *domain, ctypes.byref(address), ctypes.byref(base)))
    check(lib.comm_release_domain_windows(comm, domain[0], domain[2], domain[3]))
    check(lib.comm_barrier(comm))
    check(lib.comm_destroy(comm))
    assert lib.comm_barrier(comm) == 1 and "not the handle" in lib.comm_last_error().decode()
    print("ok")


main()
