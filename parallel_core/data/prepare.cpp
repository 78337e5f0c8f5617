#include "parallel_core/data/prepare.h"

#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/data/document_sources.h"
#include "parallel_core/data/indexed_dataset.h"
#include "parallel_core/data/tokenizer_record.h"

namespace tapestry::data {

PrepareSummary prepare_dataset(const PrepareOptions& options, const Tokenizer& tokenizer) {
  check<ValueError>(!options.append_eod || tokenizer.eod_id() >= 0, tokenizer.describe(),
                    ": has no end-of-document id to append");
  IndexedDatasetWriter writer(options.output_prefix,
                              token_type_for_vocabulary(tokenizer.vocab_size()));
  PrepareSummary summary;
  bool has_tokens = false;
  DocumentSources sources;
  const auto sink = [&](std::string_view text, bool ends_document, const TextPlace& place) {
    const std::vector<int32_t> ids = tokenizer.encode(text);
    writer.add_tokens(ids);
    has_tokens = has_tokens || !ids.empty();
    summary.text_bytes += static_cast<int64_t>(text.size());
    if (!ends_document) {
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
    sources.documents.push_back(place);
    has_tokens = false;
  };
  sources.files =
      read_documents(options.input, tokenizer.separable_at_newlines(), sink, options.progress);
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
