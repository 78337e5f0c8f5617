#include <cctype>
#include <map>
#include <stdexcept>

#include "packaging/manual/pages.h"

namespace tapestry::manual {
namespace {

// As groff reads it: a hyphen that can be copied, and nothing that it takes for a request.
std::string plain(const std::string& text) {
  static const std::map<char, std::string> kEscapes = {
      {'\\', "\\e"}, {'-', "\\-"}, {'^', "\\(ha"}, {'~', "\\(ti"}, {'`', "\\(ga"}, {'"', "\\(dq"}};
  std::string out = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
  for (const char c : text) {
    const auto found = kEscapes.find(c);
    out += found == kEscapes.end() ? std::string(1, c) : found->second;
  }
  return out;
}

// The same for a text with marks: `code` is bold, of a [text](link) the text is left.
std::string marked(const std::string& text) {
  std::string out;
  bool code = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t close = text[i] == '[' && !code ? text.find("](", i) : std::string::npos;
    const size_t end = close == std::string::npos ? close : text.find(')', close);
    if (end != std::string::npos && text.find('[', i + 1) > close) {
      out += marked(text.substr(i + 1, close - i - 1));
      i = end;
    } else if (text[i] == '`') {
      code = !code;
      out += code ? "\\fB" : "\\fR";
    } else if (text.compare(i, 2, "**") == 0 && !code) {
      ++i;
    } else {
      const std::string c = plain(std::string(1, text[i]));
      out += c.starts_with("\\&") && !out.empty() ? c.substr(2) : c;
    }
  }
  return out;
}

std::string capitals(std::string text) {
  for (char& c : text) {
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return text;
}

std::string head(const std::string& name, const char* section, const Edition& edition) {
  return ".TH \"" + plain(capitals(name)) + "\" " + section + " " + edition.date + " \"Tapestry " +
         edition.version + "\" \"Tapestry\"\n";
}

std::string option_text(const Option& option) {
  std::string tag = option.short_name.empty() ? "" : "\\fB\\-" + option.short_name + "\\fR, ";
  tag += "\\fB\\-\\-" + plain(option.name) + "\\fR";
  if (!option.value.empty()) {
    tag += " \\fI" + plain(option.value) + "\\fR";
  }
  std::string text = ".TP\n" + tag + "\n" + plain(option.doc);
  if (!option.usual.empty()) {
    text += " (" + plain(option.usual) + " unless given)";
  }
  return text + "\n";
}

std::string options_text(const std::vector<Option>& options) {
  std::string text;
  for (const Option& option : options) {
    text += option_text(option);
  }
  return text;
}

std::string synopsis(const Page& page) {
  std::string text;
  for (const std::string& form : page.usage) {
    const size_t space = std::min(form.find(' '), form.size());
    text += (text.empty() ? "" : ".br\n") + std::string("\\fB") + plain(form.substr(0, space)) +
            "\\fR" + plain(form.substr(space)) + "\n";
  }
  return text;
}

std::string part_text(const PagePart& part, bool with_sections) {
  std::string text;
  const bool own_section =
      with_sections && !part.heading.empty() && part.heading.find(' ') == std::string::npos;
  if (own_section) {
    text += ".SH " + plain(capitals(part.heading)) + "\n";
  } else if (!part.heading.empty()) {
    text += ".PP\n" + plain(part.heading) + ":\n";
  }
  if (!part.text.empty()) {
    text += ".PP\n" + plain(part.text) + "\n";
  }
  for (const auto& [word, meaning] : part.rows) {
    text += ".TP\n\\fB" + plain(word) + "\\fR\n" + plain(meaning) + "\n";
  }
  return text;
}

std::string parts_text(const std::vector<PagePart>& parts, bool with_sections) {
  std::string text;
  for (const PagePart& part : parts) {
    text += part_text(part, with_sections);
  }
  // man warns of a paragraph that begins where a section does.
  return text.starts_with(".PP\n") && with_sections ? text.substr(4) : text;
}

// Of a program with commands: each with its forms and options.
std::string commands_text(const Program& program) {
  std::string text;
  for (const auto& [words, command] : program.commands) {
    const Page page = parts_of(command.page, /*options_are_rows=*/false);
    text += ".SS \"" + plain(program.name + " " + words) + "\"\n" + synopsis(page) +
            parts_text(page.before, /*with_sections=*/false) + options_text(command.options) +
            parts_text(page.after, /*with_sections=*/false);
  }
  return text;
}

constexpr const char* kDocumentation =
    "The pages of the documentation are in \\fIshare/doc/tapestry/docs\\fR beside the folder of "
    "the "
    "programs, presets in \\fIshare/tapestry\\fR.\n";

}  // namespace

std::string purpose_of(const std::string& program) {
  static const std::map<std::string, std::string> kPurposes = {
      {"accuracy", "say whether two trainings agree, and where they part first"},
      {"compare_checkpoints", "say whether two checkpoints or runs are the same"},
      {"evaluate", "perplexity of texts and multiple choice with a language model"},
      {"export", "write a model for transformers or llama.cpp"},
      {"finetune_gpt", "tune a Hugging Face model on examples"},
      {"generate", "write text and answer with a language model"},
      {"preprocess_data", "turn text into tokens to train on"},
      {"pretrain_gpt", "train a GPT model from a YAML file"},
      {"pretrain_gpt.sh", "train a GPT model on several ranks"},
      {"pretrain_gpt_diagnosis", "pretrain_gpt with all that looks for faults"},
  };
  const auto found = kPurposes.find(program);
  if (found == kPurposes.end()) {
    throw std::runtime_error(program +
                             ": packaging/manual/man_page.cpp does not say what it is for");
  }
  return found->second;
}

std::string man_page(const Program& program, const Edition& edition) {
  const bool is_script = program.name.ends_with(".sh");
  const Page page = parts_of(program.page, /*options_are_rows=*/is_script);
  const std::string purpose = purpose_of(program.name);
  std::string text = head(program.name, "1", edition) + ".SH NAME\n" + plain(program.name) +
                     " \\- " + plain(purpose) + "\n.SH SYNOPSIS\n" + synopsis(page);
  const std::string description = parts_text(page.before, /*with_sections=*/true);
  if (!description.starts_with(".SH")) {
    text += ".SH DESCRIPTION\n";
    text += description.empty() ? static_cast<char>(std::toupper(purpose.front())) +
                                      plain(purpose.substr(1)) + ".\n"
                                : "";
  }
  text += description;
  if (!is_script && !program.options.empty()) {
    text += ".SH OPTIONS\n" + options_text(program.options);
  }
  for (const OptionGroup& group : program.groups) {
    if (!is_script) {
      text += ".SH \"" + capitals(plain(group.title)) + "\"\n" + options_text(group.options);
    }
  }
  if (!program.commands.empty()) {
    text += ".SH \"OPTIONS OF THE COMMANDS\"\n" + commands_text(program);
  }
  const std::string after = parts_text(page.after, /*with_sections=*/true);
  text += after.empty() || after.starts_with(".SH") ? after : ".SH NOTES\n" + after;
  text += std::string(".SH FILES\n") + kDocumentation + ".SH \"SEE ALSO\"\n";
  if (!program.sections.empty()) {
    text += "\\fBpretrain_gpt.yaml\\fR(5), ";
  }
  return text + (program.name == "pretrain_gpt" ? "\\fBpretrain_gpt.sh\\fR(1)\n"
                                                : "\\fBpretrain_gpt\\fR(1)\n");
}

std::string configuration_page(const Program& program, const Edition& edition) {
  std::string text = head("pretrain_gpt.yaml", "5", edition) +
                     ".SH NAME\npretrain_gpt.yaml \\- configuration of a training run\n"
                     ".SH DESCRIPTION\n\\fBpretrain_gpt\\fR(1) reads the sections and keys below "
                     "from the YAML file of \\fB\\-\\-config_path\\fR; "
                     "\\fB\\-\\-set\\fR \\fIsection.key=value\\fR goes before the file.\n";
  for (const Section& section : program.sections) {
    text += ".SH " + plain(section.name) + "\n" + marked(section.doc) + "\n";
    for (const Key& key : section.keys) {
      text += ".TP\n\\fB" + plain(key.name) + "\\fR (" + plain(key.type) +
              (key.check.empty() ? "" : ", " + marked(key.check)) +
              (key.usual == "required" ? ", required" : ", default " + plain(key.usual)) + ")\n" +
              marked(key.doc) + "\n";
    }
  }
  return text + ".SH FILES\n" + kDocumentation + ".SH \"SEE ALSO\"\n\\fBpretrain_gpt\\fR(1)\n";
}

}  // namespace tapestry::manual
