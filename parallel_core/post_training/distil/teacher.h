// What a student is held against.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/post_training/distil/teacher_file.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::post_training {

/// The distributions of a teacher for the micro-batches of a step.
class Teacher {
 public:
  Teacher() = default;
  Teacher(const Teacher&) = delete;
  Teacher& operator=(const Teacher&) = delete;
  virtual ~Teacher() = default;

  /// Before the student's passes over these micro-batches, which outlive them. Collective over the
  /// ranks that share the student.
  virtual void begin_step(const std::vector<data::Batch>& micro_batches) = 0;
  /// On the last stage: see DivergenceRequest::target.
  virtual DivergenceTarget target(int64_t micro_batch,
                                  const std::vector<int64_t>& positions) const = 0;
};

/// A model in the same process and layout, which runs over a step's micro-batches before the
/// student does. Its states before the head are kept until the next step, its logits never.
class ModelTeacher final : public Teacher {
 public:
  explicit ModelTeacher(std::unique_ptr<ParallelModel> model) : model_(std::move(model)) {}

  void begin_step(const std::vector<data::Batch>& micro_batches) override;
  DivergenceTarget target(int64_t micro_batch,
                          const std::vector<int64_t>& positions) const override;

 private:
  std::unique_ptr<ParallelModel> model_;
  std::vector<HeadRows> rows_;
};

/// What a teacher has said beforehand. Sequences of micro-batches are the file's texts by their
/// numbers, perhaps cut at their ends.
///
/// Of several tokens a position, and of beta 0, the file's are what is compared. Of one token and
/// another beta they are, as in TRL, the teacher's best and the text's own, the latter left out
/// where it is the same; with beta 1 the latter alone.
class FileTeacher final : public Teacher {
 public:
  FileTeacher(std::shared_ptr<const TeacherFile> file, double beta)
      : file_(std::move(file)), beta_(beta) {}

  void begin_step(const std::vector<data::Batch>& micro_batches) override;
  DivergenceTarget target(int64_t micro_batch,
                          const std::vector<int64_t>& positions) const override;

 private:
  std::shared_ptr<const TeacherFile> file_;
  double beta_;
  const std::vector<data::Batch>* micro_batches_ = nullptr;
};

/// The calling rank's part of the teacher of a run: the model of a folder in the run's layout,
/// frozen, in the run's compute dtype. Collective. ValueError, with both sides, where vocabulary or
/// tokenizer are not the student's (`tokenizer`; of a type "" nothing is known).
std::unique_ptr<ParallelModel> open_teacher(const AllConfig& config,
                                            const data::TokenizerIdentity& tokenizer,
                                            ProcessGroup& world);

}  // namespace tapestry::post_training
