// All of optim: optimizers, schedules, loss scaling, clipping.
#pragma once

#include "optim/adam.h"
#include "optim/grad_clip.h"
#include "optim/grad_scaler.h"
#include "optim/lr_scheduler.h"
#include "optim/optimizer.h"
#include "optim/sgd.h"
