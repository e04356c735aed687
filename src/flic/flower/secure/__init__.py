"""Secure sums: silos send masked numbers, of which the coordinator can read the sum alone.

Bonawitz et al. 2017 (Practical Secure Aggregation), with the additions against an operator who
lies. One sum takes five requests to each silo (`statements.py` has what they carry):

  advertise   keys for this sum alone, and what the silo would add to it; both signed
  share       for each peer, encrypted: a share of the two seeds of the silo's masks
  mask        the silo's numbers plus masks, modulo 2^128
  agree       a signature under the list of those whose masked numbers have arrived
  unmask      shares that take the masks off, once so many have signed the same list

`silo_sum.py` is the silo's part of it and `pooled_sum.py` the coordinator's.
"""
