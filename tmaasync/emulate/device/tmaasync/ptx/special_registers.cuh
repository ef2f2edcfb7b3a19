#pragma once

// The emulator has no SMs and no clock. tmaasync/instrument, which reads these registers, is
// replaced too.
