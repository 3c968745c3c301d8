"""A Worker with a kernel in C++ and a Python function, on two chips: ``python kernel.py``."""

import pathlib
import subprocess
import tempfile

import chipcomm
from chipcomm import TaskArgs

SOURCE = pathlib.Path(__file__).parents[3] / "examples/kernels/scale.cpp"
HEADERS = SOURCE.parents[2] / "comm-context/include"


def add_one(task):
    """Runs in the chip's process: tensors are numpy arrays on shared memory."""
    task.tensors[0][:] += 1


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chipcomm.Worker(device_ids=[0, 1]) as worker:
        kernel = f"{folder}/scale.so"
        command = ["c++", "-std=c++17", "-O2", "-fPIC", "-shared", f"-I{HEADERS}", str(SOURCE), "-o", kernel]
        subprocess.run(command, check=True)
        scale, function = worker.register_kernel(kernel), worker.register(add_one)
        x, y = worker.empty(4, "float32"), worker.empty(4, "float32")
        x[:] = [1, 2, 3, 4]
        worker.init()

        def orchestrate(orch):
            orch.submit_next_level(scale, TaskArgs().add_input(x).add_output(y).add_scalar(10), worker=0)
            # It needs what the kernel wrote, so it waits for it, on another chip.
            orch.submit_next_level(function, TaskArgs().add_inout(y), worker=1)

        worker.run(orchestrate)
        print(f"chip 0 scaled {x.tolist()} by 10, chip 1 added one: {y.tolist()}")
        assert y.tolist() == [11, 21, 31, 41]


if __name__ == "__main__":
    main()
