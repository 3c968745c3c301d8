"""The names for a chip without a Worker: communicators by handle, windows by address."""

import re

import numpy as np
import pytest

import chipcomm
from chipcomm import ChipBootstrapConfig, ChipBufferSpec, ChipCommBootstrapConfig, ChipWorker, HostBufferStaging


def test_the_comm_calls_on_two_ranks(run):
    run(
        """
from chipcomm import ChipWorker
rank = int(os.environ["RANK"])
chip = ChipWorker(); chip.init(device_id=rank)
comm = chip.comm_init(rank, 2, os.environ["CHIPCOMM_PATH"])
context = chip.comm_alloc_windows(comm, 8192)
base, size = chip.comm_get_local_window_base(comm), chip.comm_get_window_size(comm)
assert context and size >= 8192
# The context is the struct that kernels read; the windows of all ranks are at byte 32.
windows = np.frombuffer(chip.copy_from(context, 1056), np.uint64)[4:6].tolist()
assert windows[rank] == base
chip.copy_to(base, np.full(4, rank + 1, np.float32)); chip.comm_barrier(comm)
assert np.frombuffer(chip.copy_from(windows[1 - rank], 16), np.float32).tolist() == [2 - rank] * 4
assert chip.comm_derive_context(comm, [1, 0], 1 - rank, 4096, 4096) not in (0, context)
domain, at = chip.comm_alloc_domain_windows(comm, 7, [1, 0], 4096)
assert domain != context and not any(chip.copy_from(at, 4096))
chip.comm_barrier(comm); chip.comm_release_domain_windows(comm, 7)
chip.comm_destroy(comm); chip.finalize()
"""
    )


def test_a_bootstrap_makes_communicator_window_and_buffers():
    chip, x, out = ChipWorker(), np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    chip.init(3)
    specs = [
        ChipBufferSpec("x", "float32", 4, load_from_host=True, store_to_host=True),
        ChipBufferSpec("signals", None, 10),
    ]
    comm = ChipCommBootstrapConfig(0, 1, "/tmp/chipcomm-bootstrap-test", 4096)
    config = ChipBootstrapConfig(comm, specs, [HostBufferStaging("x", x)], [HostBufferStaging("x", out)])
    made = chip.bootstrap_context(3, config)
    assert made.buffer_ptrs[0] == made.local_window_base and made.buffer_ptrs[1] > made.buffer_ptrs[0]
    assert made.device_ctx and made.actual_window_size >= 4096
    assert np.frombuffer(chip.copy_from(made.buffer_ptrs[0], 16), np.float32).tolist() == [0, 1, 2, 3]
    with pytest.raises(chipcomm.InvalidError, match="this ChipWorker is bootstrapped already; call shutdown_bootstrap first"):
        chip.bootstrap_context(3, config)
    chip.copy_to(made.buffer_ptrs[0], x * 2)
    chip.shutdown_bootstrap()
    chip.shutdown_bootstrap()
    assert out.tolist() == [0, 2, 4, 6]
    chip.finalize()


OUTSIDE = "0x1000 is not in a window of this ChipWorker; take addresses from comm_get_local_window_base"


def test_wrong_calls_of_a_chip_are_refused():
    chip = ChipWorker()
    comm = ChipCommBootstrapConfig(0, 1, "/tmp/chipcomm-bootstrap-test", 4096)
    load = ChipBufferSpec("x", "float32", 4, load_from_host=True)
    refused = [
        (lambda: chip.comm_init(0, 1, "/tmp/x"), "this ChipWorker has no device; call init(device_id) first"),
        (lambda: chip.init(0) or chip.init(1), "this ChipWorker has device 0 already; make another one"),
        (lambda: chip.comm_init(-1, 1, "/tmp/x"), "rank is -1 and nranks is 1; a rank is a number from 0 below nranks"),
        (lambda: chip.comm_barrier(3), "there is no communicator 3; comm_init makes one, comm_destroy ends it"),
        (
            lambda: chip.comm_get_window_size(chip.comm_init(0, 1, "/tmp/chipcomm-bootstrap-test")),
            "this communicator has no windows; call comm_alloc_windows first",
        ),
        (lambda: chip.comm_alloc_windows(1, 0), "0"),
        (lambda: chip.copy_from(4096, 4), OUTSIDE),
        (lambda: chip.copy_to(4096, b"abcd"), OUTSIDE),
        (lambda: chip.bootstrap_context(1, ChipBootstrapConfig()), "this ChipWorker has device 0, not 1; call init(1) first"),
        (
            lambda: chip.bootstrap_context(0, ChipBootstrapConfig(), object()),
            "a channel to a parent is a Worker's; use Worker(chip_bootstrap_configs=",
        ),
        (
            lambda: chip.bootstrap_context(0, ChipBootstrapConfig(None, [load])),
            "buffer 'x' is staged, and no HostBufferStaging in host_inputs names it; add one there",
        ),
        (
            lambda: chip.bootstrap_context(0, ChipBootstrapConfig(None, [ChipBufferSpec("x", None, 4)])),
            "the configuration has buffers and no comm, which makes the window that they lie in; give it a comm",
        ),
        (
            lambda: chip.bootstrap_context(0, ChipBootstrapConfig(comm, [ChipBufferSpec("x", None, 1 << 30)])),
            "the buffers need 1073741824 bytes and the window has 4096; ask for a larger one",
        ),
        (
            lambda: chip.bootstrap_context(0, ChipBootstrapConfig(comm, [load], [HostBufferStaging("x", np.zeros(3))])),
            "the array of buffer 'x' has 24 bytes; pass a contiguous one of 16",
        ),
    ]
    for call, text in refused:
        with pytest.raises(chipcomm.InvalidError, match=re.escape(text)):
            call()
    assert chip.bootstrap_context(0, ChipBootstrapConfig()).buffer_ptrs == []
    chip.finalize()
