// All of diagnosis that programs use: what it adds to a run, and layouts that are compared.
#pragma once

#include "diagnosis/dump/run/add_dump.h"
#include "diagnosis/run_parts.h"
#include "diagnosis/verify/train_or_verify.h"
#include "diagnosis/verify/verify_layout.h"
