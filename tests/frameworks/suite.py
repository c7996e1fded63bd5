"""A shard of the cases of a framework's own tests: what suite_torch.py and suite_jax.py have in common.

Prints a line of JSON when a case begins and one when it is over, with a digest of each
of its results, or the error. A case that leaves the device in error ends the process
with status 3: the caller starts it again behind that case.
"""

import argparse
import json
import signal
import sys

# Seconds that a case may take.
PATIENCE = 20


def failure(error):
    """An error's type and first line."""
    text = (str(error).strip() or "no text").splitlines()[0]
    return f"{type(error).__name__}: {text[:160]}"


def attempted(function, *arguments):
    """What a function returns, or its failure."""
    try:
        return function(*arguments)
    except TimeoutError:
        raise
    except Exception as error:  # pylint: disable=broad-except
        return failure(error)


def late(_signal, _frame):
    """A case takes too long."""
    raise TimeoutError(f"no end within {PATIENCE} s")


def run(about, cases, tried, synchronize):
    """Runs the cases of a shard: `cases` are pairs of a name and a case, of which `tried` returns
    the results, at most so many; `synchronize` raises RuntimeError if the device is in error."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("shard", type=int)
    parser.add_argument("shards", type=int)
    parser.add_argument("--skip", type=int, default=0, help="cases of this shard that are left out")
    parser.add_argument("--only", nargs="*", metavar="CASE", help="cases, as they are printed, instead of all")
    parser.add_argument("--samples", type=int, default=6, help="samples of a case at most")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, late)
    chosen = [each for each in cases if not options.only or each[0] in options.only]
    for name, case in chosen[options.shard :: options.shards][options.skip :]:
        print(json.dumps({"begins": name}), flush=True)
        signal.alarm(PATIENCE)
        try:
            line = {"case": name, "results": tried(case, options.samples)}
        except Exception as error:  # pylint: disable=broad-except
            line = {"case": name, "error": failure(error)}
        signal.alarm(0)
        try:
            synchronize()
        except RuntimeError as error:
            print(json.dumps({"case": name, "error": f"device: {failure(error)}"}), flush=True)
            sys.exit(3)
        print(json.dumps(line), flush=True)
