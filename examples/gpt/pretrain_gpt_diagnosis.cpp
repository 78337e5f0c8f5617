// pretrain_gpt with all of its modes: what it starts where one is asked for that few runs need.
#include "examples/gpt/diagnosis_modes.h"
#include "parallel_core/training/program.h"

int main(int argc, char** argv) {
  return tapestry::run_program(
      argc, argv, [](const std::vector<std::string>& words, const tapestry::Distributed& job) {
        return tapestry::examples::run_pretrain(words, job, *tapestry::examples::diagnosis_modes());
      });
}
