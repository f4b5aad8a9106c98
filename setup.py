"""Build the C++ kernels: one shared library per instruction set, of which qkv/engine/native.py loads the best at run time.

They are plain libraries without Python's interface, so one wheel serves every Python 3 of a platform. Where there is no compiler, or it
fails, the package is installed without them, and torch computes the same more slowly.
"""

import platform
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("qkv/engine/cpp")
CPU = SOURCES / "cpu.cpp"
"""A library of its own: it says which of the others the processor can run."""
X86 = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"],
}
ARM = {"portable": [], "dotprod": ["-march=armv8.2-a+dotprod"]}
LEVELS = {"x86_64": X86, "amd64": X86, "aarch64": ARM, "arm64": ARM}
"""Machine -> instruction sets and their compiler options; another machine gets "portable" alone."""


class BuildKernels(build_ext):
    """Compile every library in a folder of its own: their object files have the same names."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        Path("qkv/engine/lib").mkdir(exist_ok=True)  # where an editable installation has them
        temporary, self.build_temp = self.build_temp, str(Path(self.build_temp) / ext.name)
        try:
            super().build_extension(ext)
        finally:
            self.build_temp = temporary


class WheelForAnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def kernels(level: str, options: list[str]) -> Extension:
    # OpenMP's functions are left undefined: those of torch, which is loaded before, are used, and not a second set of threads
    threads = ["-fopenmp"] if platform.system() == "Linux" else []
    return Extension(
        f"qkv.engine.lib.{level}",
        [str(source) for source in sorted(SOURCES.glob("*.cpp")) if source.name != CPU.name],
        depends=[str(header) for header in sorted(SOURCES.glob("*.h"))],
        extra_compile_args=[
            "-O3",
            "-g0",
            "-std=c++20",
            "-fPIC",
            "-fopenmp-simd",
            "-fvisibility=default",
            "-Wno-psabi",
            *threads,
            *options,
        ],
        language="c++",
        optional=True,
    )


supported = sysconfig.get_platform().split("-")[0] in ("linux", "macosx")  # 64-bit `long`, GCC's vectors
levels = LEVELS.get(platform.machine().lower(), {"portable": []}) if supported else {}
setup(
    ext_modules=[Extension("qkv.engine.lib.cpu", [str(CPU)], optional=True)] * bool(levels)
    + [kernels(level, options) for level, options in levels.items()],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": WheelForAnyPython},
)
