#pragma once

// The emulator needs no exit: a thread ends with its kernel, and tmaasync/instrument, which ends
// threads earlier, is replaced too.
