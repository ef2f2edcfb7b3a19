#pragma once

// NVRTC declares what device code may call of this header, and lacks the header.
