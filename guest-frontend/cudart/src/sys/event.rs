//! Events (CUDA Runtime API, chapter "Event Management"; inter-process events
//! from "Device Management").
