#!/usr/bin/env python3
"""Sums to learn by rewards alone, and what a model makes of them. Needs nothing but Python 3.

  grpo_arithmetic.py make FOLDER [--seed N]
      writes FOLDER/sft.jsonl (a few sums with their answers), FOLDER/prompts.jsonl (many sums, whose
      answers only the reward knows) and FOLDER/held_out.jsonl (sums that are in neither).
  grpo_arithmetic.py reward
      a reward program: for each line of standard input the share of the answer's digits that the
      completion has in their places, counted from the last one; 0 where it is no number.
  grpo_arithmetic.py score HELD_OUT ANSWERS
      the share of held-out sums that the answers of `generate --prompts HELD_OUT` get right.

A sum is a prompt "07+45=" with the answer "052": all pairs of numbers below 100, each in one file.
"""
import argparse
import json
import os
import random
import sys


def make(folder, seed, shown, held_out):
    sums = [(a, b) for a in range(100) for b in range(100)]
    random.Random(seed).shuffle(sums)
    os.makedirs(folder, exist_ok=True)
    parts = {"sft": sums[:shown], "held_out": sums[shown:shown + held_out], "prompts": sums[shown + held_out:]}
    for name, part in parts.items():
        with open(os.path.join(folder, name + ".jsonl"), "w") as f:
            for a, b in part:
                line = {"prompt": f"{a:02}+{b:02}="}
                line["completion" if name == "sft" else "answer"] = f"{a + b:03}"
                f.write(json.dumps(line) + "\n")
        print(f"{name}.jsonl: {len(part)} sums")


def reward():
    for line in sys.stdin:
        judged = json.loads(line)
        wanted, given = judged["answer"], judged["completion"].strip()
        right = sum(w == g for w, g in zip(reversed(wanted), reversed(given)))
        is_number = given.isascii() and given.isdigit()
        print(right / max(len(wanted), len(given)) if is_number else 0, flush=True)


def score(held_out, answers):
    with open(held_out) as f:
        wanted = [json.loads(line)["answer"] for line in f]
    with open(answers) as f:
        given = [json.loads(line) for line in f]
    if len(wanted) != len(given):
        raise SystemExit(f"{held_out} has {len(wanted)} sums, {answers} {len(given)} answers")
    right = sum(w == g["text"].strip() for w, g in zip(wanted, given))
    print(f"{right} of {len(wanted)} right: {right / len(wanted):.4f}")


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
commands = parser.add_subparsers(dest="command", required=True)
making = commands.add_parser("make")
making.add_argument("folder")
making.add_argument("--seed", type=int, default=1)
making.add_argument("--shown", type=int, default=1000, help="sums in sft.jsonl")
making.add_argument("--held_out", type=int, default=500, help="sums in held_out.jsonl")
commands.add_parser("reward")
scoring = commands.add_parser("score")
scoring.add_argument("held_out")
scoring.add_argument("answers")
arguments = parser.parse_args()
if arguments.command == "make":
    make(arguments.folder, arguments.seed, arguments.shown, arguments.held_out)
elif arguments.command == "reward":
    reward()
else:
    score(arguments.held_out, arguments.answers)
