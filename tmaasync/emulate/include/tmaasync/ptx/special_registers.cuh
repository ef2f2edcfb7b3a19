#pragma once

// None: the emulator has no SMs and no clock. What reads them, tmaasync/instrument, is replaced
// too.
