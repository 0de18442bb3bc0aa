//! The file tier that several nodes share: names in a store (I15), whole files on each node's SSD and on a disk that all
//! nodes see.
