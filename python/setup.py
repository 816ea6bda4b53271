"""The wheel: pure Python and one shared library, for every Python of one platform. `build-wheel` runs this."""

import os
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):
    """A wheel with the tag of its library, which needs nothing of Python."""

    def finalize_options(self):
        if not Path("consort/lib/libnccl.so.2").is_file():
            raise SystemExit("there is no consort/lib/libnccl.so.2: build the wheel with python/build-wheel OUT_DIR")
        super().finalize_options()

    def get_tag(self):
        return "py3", "none", os.environ["CONSORT_WHEEL_PLATFORM"]


class Binary(Distribution):
    """One whose files belong to a platform."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"bdist_wheel": Wheel}, distclass=Binary)
