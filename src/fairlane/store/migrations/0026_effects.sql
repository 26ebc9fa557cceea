-- Effects: steps whose intent is recorded before they act. NULL: an ordinary step. Above zero: begun
-- under the lease with this fencing token, the outcome is not recorded. 0: it happened, `value` is
-- its result. -1: it did not happen.
ALTER TABLE checkpoint ADD COLUMN intent {int};
