// What the registry lists: one function per task, see TaskEntry::load.
#pragma once

#include "eval/task.h"

namespace reprise::eval {

Result<TaskData> load_ppl(const TaskContext& context);
Result<TaskData> load_needle(const TaskContext& context);
Result<TaskData> load_passkey(const TaskContext& context);
Result<TaskData> load_ruler(const TaskContext& context);
Result<TaskData> load_longbench(const TaskContext& context);
Result<TaskData> load_gsm8k(const TaskContext& context);
Result<TaskData> load_dialogue(const TaskContext& context);
Result<TaskData> load_fidelity(const TaskContext& context);

}  // namespace reprise::eval
