// Ctrl-C (a polite kill, a terminal that goes) as a flag that callbacks look at, so that work stops
// at a clean point.
#pragma once

namespace reprise::cli {

/// Takes over SIGINT, SIGTERM and SIGHUP and ignores SIGPIPE and SIGXFSZ. A second signal, a second
/// or two after one that nobody has acknowledged, ends the program at once; sooner it counts as the
/// same.
void catch_interrupts();

/// True from a signal until acknowledge_interrupt().
bool interrupted();

/// The stop was carried out; later work may run again.
void acknowledge_interrupt();
/// The same, and what follows ends the program: the signal sent again soon does not stop it.
void end_after_interrupt();

/// Whether the last signal was meant for the program, not for what it is doing: any but Ctrl-C.
bool asked_to_end();

/// While on, Ctrl-Z is left to the one that waits for input: take_suspension() says that it came.
void catch_suspension(bool on);
bool take_suspension();

/// Waits until there is something to read, or its end; false: interrupted, be it just before, or
/// asked to suspend.
bool wait_for_input(int file);

/// 128 + the last signal caught, as shells report it; 130 before any.
int interrupt_exit_code();

}  // namespace reprise::cli
