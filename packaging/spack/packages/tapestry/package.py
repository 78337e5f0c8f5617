# Spack's recipe of Tapestry: `spack repo add packaging/spack`, then `spack install tapestry`.
from spack.package import *


class Tapestry(CMakePackage):
    """Training of GPT language models on CPUs and CPU clusters, in C++20: an eager autograd
    framework and a Megatron-style parallel training core over MPI."""

    # Of a clone: `spack dev-build tapestry@0.1.0`, or `spack develop --path=CLONE tapestry@0.1.0` in
    # an environment.
    version("0.1.0")

    license("Apache-2.0")
    maintainers("tapestry")

    variant("mpi", default="openmpi", values=("openmpi", "mpich"), multi=False,
            description="MPI whose mpirun the launcher calls")
    variant("cpu_levels", default="all", values=("all", "native"), multi=False,
            description="CPU levels of the kernels; `all` chooses one when a program starts")
    variant("tests", default=False, description="Build the tests")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type=("build", "link"))
    depends_on("gzip", type="build")

    depends_on("openmpi@4.1:", when="mpi=openmpi", type=("build", "link", "run"))
    depends_on("mpich@4.0:", when="mpi=mpich", type=("build", "link", "run"))
    # One team of threads for both: OpenBLAS's own threads would run beside those of OpenMP.
    depends_on("openblas threads=openmp")
    depends_on("onednn@2: cpu_runtime=omp")
    depends_on("eigen@3.4:")
    depends_on("boost@1.74: +program_options")
    depends_on("nlohmann-json@3.11:")
    depends_on("sentencepiece")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("yaml-cpp@0.7:")
    depends_on("spdlog@1.10:")
    depends_on("googletest@1.12: +gmock", when="+tests", type="build")

    # Designated initialisers and `consteval`, as both compilers have them.
    conflicts("%gcc@:11", msg="Tapestry needs GCC 12 or later")
    conflicts("%clang@:13", msg="Tapestry needs Clang 14 or later")

    generator("ninja")

    def cmake_args(self):
        openblas = self.spec["openblas"]
        onednn = self.spec["onednn"]
        return [
            self.define("TAPESTRY_MPI", self.spec.variants["mpi"].value),
            self.define("TAPESTRY_CPU_LEVELS", self.spec.variants["cpu_levels"].value),
            self.define_from_variant("TAPESTRY_BUILD_TESTS", "tests"),
            # Where cmake/TapestryBlas.cmake would look in Debian's folders.
            self.define("TAPESTRY_OPENBLAS_LIBRARY", openblas.libs[0]),
            self.define("TAPESTRY_OPENBLAS_INCLUDE", openblas.prefix.include),
            self.define("TAPESTRY_ONEDNN_LIBRARY", onednn.libs[0]),
            self.define("TAPESTRY_ONEDNN_INCLUDE", onednn.prefix.include),
        ]

    def setup_run_environment(self, env):
        env.set("TAPESTRY_ROOT", self.prefix)
