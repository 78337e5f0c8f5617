// All of nn: modules, layers, losses, initialisers, batches of data.
#pragma once

#include "nn/data/data_loader.h"
#include "nn/init.h"
#include "nn/layers/activation.h"
#include "nn/layers/container.h"
#include "nn/layers/embedding.h"
#include "nn/layers/linear.h"
#include "nn/layers/multihead_attention.h"
#include "nn/layers/norm.h"
#include "nn/losses/losses.h"
#include "nn/module.h"
#include "nn/module_call.h"
