-- What the engine reports of a turn that it ran, as JSON: how the answer ended, how the model was given the attached
-- files, and where the window of the conversation begins. NULL for a turn about which there is nothing to say.

ALTER TABLE turns ADD COLUMN report text;
