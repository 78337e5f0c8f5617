// All of optim: optimizers, schedules, loss scaling, clipping.
#pragma once

#include "optim/adafactor.h"
#include "optim/adam.h"
#include "optim/came.h"
#include "optim/grad_clip.h"
#include "optim/grad_scaler.h"
#include "optim/lion.h"
#include "optim/lr_scheduler.h"
#include "optim/muon.h"
#include "optim/optimizer.h"
#include "optim/schedule_curves.h"
#include "optim/sgd.h"
