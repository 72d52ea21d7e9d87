-- Migration 6: messages can be withdrawn while they wait for a run (`message.withdrawn`).

-- No column changes. The new number keeps a Tenax that does not know the event from using the store.
