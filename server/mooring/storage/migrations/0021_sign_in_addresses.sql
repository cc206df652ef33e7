-- Whether a user signed in from an address before: asked when somebody guesses at the user's password.
CREATE INDEX audit_sign_in_addresses ON audit (actor_id, remote_address)
  WHERE action = 'sign_in' AND outcome = 'done';
