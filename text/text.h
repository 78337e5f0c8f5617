// All of text that programs use: tokenizers, texts from files, templates of conversations.
#pragma once

#include "text/chat/chat_format.h"
#include "text/sources/text_source.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
