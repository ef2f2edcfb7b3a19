#pragma once

// None: a thread ends where its kernel does. What ends one earlier, tmaasync/instrument, is
// replaced too.
