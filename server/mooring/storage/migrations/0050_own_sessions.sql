-- People see where their sessions and tokens were made, and end every session but the one in use.

ALTER TABLE token
  ADD COLUMN remote_address text CONSTRAINT token_remote_address_length CHECK (length(remote_address) <= 100),
  ADD COLUMN user_agent text CONSTRAINT token_user_agent_length CHECK (length(user_agent) <= 200);
COMMENT ON COLUMN token.remote_address IS 'The address from which a session or personal token was made.';
COMMENT ON COLUMN token.user_agent IS 'What the program that made it called itself: any text, and no proof.';

ALTER TABLE "user"
  ADD COLUMN sessions_from timestamptz,
  ADD COLUMN sessions_except text COLLATE "C";
COMMENT ON COLUMN "user".sessions_from IS 'Sessions made before are invalid: the user ended them. Personal tokens stay.';
COMMENT ON COLUMN "user".sessions_except IS 'Except for the session from which the user did that.';
