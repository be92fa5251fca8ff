-- ARGV: id, fence. Gives the task back; returns its new state, or false when the lease is lost.
local id = ARGV[1]
if not holds(id, ARGV[2]) then
  return false
end
return start_over(id, now_ms())
