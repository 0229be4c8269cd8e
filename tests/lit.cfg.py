# lit over the text tests: each file says in RUN lines how it is checked. Run one folder alone with
# `ctest -R lit` or `lit tests/passes` and PLANC_BINARY_DIR set.
import os
import shutil
import lit.formats

config.name = "planc"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".ir", ".test", ".plan"]
config.excludes = ["golden", "fuzz", "inputs", "errors", "fmt", "language"]
config.test_source_root = os.path.dirname(__file__)
build = os.environ.get("PLANC_BINARY_DIR", os.path.join(config.test_source_root, "..", "build", "release"))
config.test_exec_root = os.path.join(build, "lit")
config.environment["PATH"] = os.pathsep.join(
    [os.environ.get("PLANC_LLVM_TOOLS", "/usr/lib/llvm-14/bin"), config.environment.get("PATH", "")])
root = os.path.dirname(config.test_source_root)
config.substitutions += [
    ("%planc", os.path.join(build, "planc")),
    ("%planrun_fake", os.path.join(build, "tests", "gpu", "planrun_fake")),
    ("%planrun", os.path.join(build, "planrun")),
    ("%root", root),
]
# Absent where MPI is. Tests run as root, with more ranks than processors, in containers.
mpirun = os.environ.get("PLANC_MPIRUN")
if mpirun:
    config.available_features.add("mpi")
    config.substitutions += [
        ("%mpirun", mpirun),
        ("%comm_mpi_test", os.path.join(build, "tests", "comm_mpi_test")),
    ]
    config.environment.update({
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    })
# Pages are looked at where there is a browser.
if any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
    config.available_features.add("browser")
for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
    if name in os.environ:
        config.environment[name] = os.environ[name]
