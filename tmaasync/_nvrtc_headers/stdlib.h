#pragma once

// Of the C library <cuda.h> asks for this header, and uses nothing of it.
