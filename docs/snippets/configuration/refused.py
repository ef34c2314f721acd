from grelmicro import SettingsValidationError
from grelmicro.coordination import LeaderElection

try:
    LeaderElection("mailer", lease_duration=10, renew_deadline=20)
except SettingsValidationError as error:
    print(error)
# Prints:
#   invalid LeaderElectionConfig: renew_deadline must be shorter than lease_duration
