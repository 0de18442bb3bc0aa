//! FUSE front end: kernel requests to engine calls. No policy in here.
