"""Programs with more rights than their user, which chooses their environment."""

import os
import shutil
import subprocess
import tempfile

import harness
from field import PATIENCE, attack, expect, needs

NOBODY = 65534
SOURCE = """
#include <dlfcn.h>
int main(int count, char **arguments) {
    void *context, *library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : 0;
    if (!library) return 2;
    int (*start)(unsigned) = dlsym(library, "cuInit");
    int (*retain)(void **, int) = dlsym(library, "cuDevicePrimaryCtxRetain");
    return start(0) || retain(&context, 0);
}
"""


@attack
def variables_of_a_setuid_program(field):
    """No variable of its user has it read or write a file."""
    needs(os.getuid() == 0 and shutil.which("cc"), "root and a C compiler")
    with tempfile.TemporaryDirectory() as folder:
        needs(not os.statvfs(folder).f_flag & os.ST_NOSUID, "a temporary folder with setuid programs")
        os.chmod(folder, 0o755)
        library, program, plain, secret, own = (os.path.join(folder, name) for name in ("libcuda.so.1", "setuid", "plain", "secret", "own"))
        shutil.copy(os.path.join(harness.LIBRARIES, "libcuda.so.1"), library)
        subprocess.run(["cc", "-x", "c", "-o", plain, "-", "-ldl"], input=SOURCE, text=True, check=True)
        shutil.copy(plain, program)
        os.chmod(library, 0o755)
        os.chmod(plain, 0o755)
        os.chmod(program, 0o4755)
        with open(secret, "w", encoding="ascii") as file:
            file.write("password = hunter2\n")
        os.chmod(secret, 0o600)
        os.mkdir(own)
        os.chown(own, NOBODY, NOBODY)

        def run(what, **variables):
            command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", what, library]
            environment = field.daemon.guest_environment("tcp").items()
            environment = {name: value for name, value in environment if not name.startswith("LD_")}
            environment.update(variables)
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)

        written = os.path.join(own, "statistics")
        done = run(plain, PARAGPU_STATS_FILE=written)
        expect(done.returncode == 0 and os.path.exists(written), f"an ordinary program has no GPU: {done}")
        written = os.path.join(folder, "statistics")
        run(program, PARAGPU_STATS_FILE=written)
        expect(not os.path.exists(written), "it creates a file that its user may not")
        for path in (secret, "/etc/shadow"):
            done = run(program, PARAGPU_CONFIG=path)
            expect(path not in done.stderr and "hunter2" not in done.stderr, f"it reads {path}: {done.stderr}")
    return 4
