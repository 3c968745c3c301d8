"""One rank of a group, in Python through ctypes: RANK NRANKS PATH LIBRARY."""

import ctypes
import sys

FLOAT32, SUM, MISSING = 0, 0, None


def main() -> None:
    rank, nranks, path, library = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    lib = ctypes.CDLL(library)
    for name in ("comm_init", "comm_coll_create", "comm_coll_alloc"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.comm_last_error.restype = ctypes.c_char_p

    def check(code: int) -> None:
        assert code == 0, (code, lib.comm_last_error().decode())

    comm = ctypes.c_void_p(lib.comm_init(rank, nranks, None, path.encode()))
    assert comm.value, lib.comm_last_error().decode()
    coll = ctypes.c_void_p(lib.comm_coll_create(comm))
    assert coll.value, lib.comm_last_error().decode()

    count = ctypes.c_size_t(5000)
    data = (ctypes.c_float * 5000)(*(rank + at % 10 for at in range(5000)))
    check(lib.comm_coll_all_reduce(coll, data, data, count, FLOAT32, SUM))
    ranks = nranks * (nranks - 1) // 2
    assert list(data) == [ranks + nranks * (at % 10) for at in range(5000)]

    memory = lib.comm_coll_alloc(coll, ctypes.c_size_t(20000))
    tensor = (ctypes.c_float * 5000).from_address(memory)
    tensor[:] = [1.5] * 5000
    request, done = ctypes.c_uint64(), ctypes.c_int()
    pointer = ctypes.c_void_p(memory)
    check(lib.comm_coll_start_all_reduce(coll, pointer, pointer, count, FLOAT32, SUM, ctypes.byref(request)))
    while not done.value:
        check(lib.comm_coll_test(coll, request, ctypes.byref(done)))
    assert tensor[4999] == 1.5 * nranks
    check(lib.comm_coll_free(coll, pointer))

    assert lib.comm_coll_all_reduce(coll, MISSING, data, count, FLOAT32, SUM) == 1
    assert "input is null" in lib.comm_last_error().decode()
    check(lib.comm_coll_barrier(coll))
    check(lib.comm_coll_destroy(coll))
    assert lib.comm_coll_barrier(coll) == 1 and "not the handle" in lib.comm_last_error().decode()
    check(lib.comm_destroy(comm))
    print("ok")


main()
