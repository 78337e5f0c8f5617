#include "parallel_core/data/prepare.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/document_sources.h"
#include "parallel_core/data/indexed_dataset.h"
#include "text/tokenizers/tokenizer_record.h"

namespace tapestry::data {

namespace {

// Encodes pieces of text on all threads and hands them on in their order, so that the result does
// not depend on how many there are.
class OrderedEncoder {
 public:
  struct Piece {
    std::string text;
    bool ends_document = false;
    TextPlace place;
    std::vector<int32_t> ids;
    std::exception_ptr error = nullptr;
  };
  using Sink = std::function<void(const Piece& piece)>;

  OrderedEncoder(const Tokenizer& tokenizer, Sink sink)
      : tokenizer_(tokenizer), sink_(std::move(sink)) {}

  void add(std::string_view text, bool ends_document, const TextPlace& place) {
    pieces_.push_back({std::string(text), ends_document, place});
    bytes_ += text.size() + kBytesOfAPiece;
    if (bytes_ >= most_bytes_) {
      flush();
    }
  }

  void flush() {
    std::atomic<size_t> next = 0;
    // Pieces differ in size: each thread takes the next one that nobody has.
    kernels::parallel_for(num_threads(), 1, [&](int64_t /*begin*/, int64_t /*end*/) {
      for (size_t i = next++; i < pieces_.size(); i = next++) {
        try {
          pieces_[i].ids = tokenizer_.encode(pieces_[i].text);
        } catch (...) {
          pieces_[i].error = std::current_exception();
        }
      }
    });
    for (const Piece& piece : pieces_) {
      if (piece.error) {
        std::rethrow_exception(piece.error);
      }
      sink_(piece);
    }
    pieces_.clear();
    bytes_ = 0;
  }

 private:
  static constexpr size_t kBytesOfAPiece = sizeof(Piece);

  const Tokenizer& tokenizer_;
  Sink sink_;
  std::vector<Piece> pieces_;
  size_t bytes_ = 0;
  // Documents that cannot come in pieces may be large.
  size_t most_bytes_ = std::max<size_t>(8, 2 * static_cast<size_t>(num_threads())) << 20U;
};

}  // namespace

PrepareSummary prepare_dataset(const PrepareOptions& options, const Tokenizer& tokenizer) {
  check<ValueError>(!options.append_eod || tokenizer.eod_id() >= 0, tokenizer.describe(),
                    ": has no end-of-document id to append");
  IndexedDatasetWriter writer(options.output_prefix,
                              token_type_for_vocabulary(tokenizer.vocab_size()));
  PrepareSummary summary;
  bool has_tokens = false;
  DocumentSources sources;
  OrderedEncoder encoder(tokenizer, [&](const OrderedEncoder::Piece& piece) {
    writer.add_tokens(piece.ids);
    has_tokens = has_tokens || !piece.ids.empty();
    summary.text_bytes += static_cast<int64_t>(piece.text.size());
    if (!piece.ends_document) {
      return;
    }
    if (has_tokens) {
      if (options.append_eod) {
        const int32_t eod = tokenizer.eod_id();
        writer.add_tokens({&eod, 1});
      }
      writer.end_sequence();
    } else {
      ++summary.empty_documents;
    }
    writer.end_document();
    sources.documents.push_back(piece.place);
    has_tokens = false;
  });
  sources.files = read_documents(
      options.input, tokenizer.separable_at_newlines(),
      [&](std::string_view text, bool ends_document, const TextPlace& place) {
        encoder.add(text, ends_document, place);
      },
      options.progress);
  encoder.flush();
  summary.documents = writer.num_documents();
  summary.tokens = writer.num_tokens();
  check<ValueError>(summary.tokens > 0, options.input.files.front(),
                    options.input.files.size() > 1 ? " and the other files: " : ": ",
                    "has no text, nothing to prepare");
  writer.finish(tokenizer_record_text(make_tokenizer_record(options.output_prefix, tokenizer,
                                                            options.tokenizer_model)),
                &sources);
  return summary;
}

}  // namespace tapestry::data
