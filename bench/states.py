"""Runs that belong together in one state of the machine; see compare.py.

A virtual machine's processors may be "near" each other or "far" apart (bench/core_round_trip.h), and the
host moves them within minutes. Figures of different states are no pair.
"""

CHANGED = "changed"  # the state of runs that never came to lie in one


def state_of_runs(states):
    """What was seen around all the runs: the one state, or CHANGED."""
    seen = set(states)
    return seen.pop() if len(seen) == 1 else CHANGED


def in_one_state(runs, probe, repeats, log=lambda text: None):
    """Calls each of `runs` in turn, with probe() before the first and after every one, until they all lie
    in one state: at most 1 + `repeats` times. Returns the last results, in the order of `runs`, and the
    state. Each run returns (result, states), the states that it saw itself."""
    for attempt in range(repeats + 1):
        states, results = [probe()], []
        for run in runs:
            result, own = run()
            results.append(result)
            states += [*own, probe()]
        state = state_of_runs(states)
        if state != CHANGED:
            break
        log(f"the machine's state changed ({', '.join(states)}), attempt {attempt + 1} of {repeats + 1}")
    return results, state
