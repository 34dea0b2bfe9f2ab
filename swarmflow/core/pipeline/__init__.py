"""The way of a microbatch through the stages: dispatched, admitted, computed, repaired."""
