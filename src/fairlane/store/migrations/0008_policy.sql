-- Who has changed the policy and why, and which version of it has decided an event.

ALTER TABLE policy ADD COLUMN author {text};
ALTER TABLE policy ADD COLUMN note {text};
ALTER TABLE event ADD COLUMN policy_version {int};
