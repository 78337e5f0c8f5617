// All of interop that programs use: models for other programs, tuning of other programs' models.
#pragma once

#include "interop/export/gguf_export.h"
#include "interop/export/hf_export.h"
#include "interop/export/merge_adapter.h"
#include "interop/finetune/finetune.h"
